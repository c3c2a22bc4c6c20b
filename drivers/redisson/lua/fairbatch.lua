-- Runs acquireFair and releaseFair for callers that have nothing to do with
-- each other, each for a lock of its own. Eleven ARGV stand for one of them:
-- 'a' or 'r', and the arguments. A release and an acquire without tokens have
-- three KEYS each, and others have four. Returns what each returned, or its
-- error.
local results, key = {}, 1
for arg = 1, #ARGV, 11 do
  local ok, result
  if ARGV[arg] == 'r' then
    ok, result = pcall(releaseFair, KEYS[key], KEYS[key + 1], KEYS[key + 2], unpack(ARGV, arg + 1, arg + 5))
    key = key + 3
  else
    local token = ARGV[arg + 8] ~= '' and KEYS[key + 3]
    ok, result = pcall(acquireFair, KEYS[key], KEYS[key + 1], KEYS[key + 2], token, unpack(ARGV, arg + 1, arg + 10))
    key = key + (token and 4 or 3)
  end
  if not ok and type(result) ~= 'table' then result = {err = result} end
  results[#results + 1] = result
end
return results
