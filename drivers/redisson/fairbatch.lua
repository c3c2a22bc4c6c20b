-- Runs acquireFair and releaseFair for callers that have nothing to do with each other, each for a lock of its own. Thirteen ARGV stand for
-- one of them, 'a' or 'r' and the arguments, and three or four KEYS, as for all.
-- Returns what each returned, or its error.
local results, keys = {}, #KEYS / (#ARGV / 13)
for arg = 1, #ARGV, 13 do
  local key = #results * keys
  local run = ARGV[arg] == 'r' and releaseFair or acquireFair
  local ok, result = pcall(run, KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], keys == 4 and KEYS[key + 4] or nil, unpack(ARGV, arg + 1, arg + 12))
  if not ok and type(result) ~= 'table' then result = {err = result} end
  results[#results + 1] = result
end
return results
