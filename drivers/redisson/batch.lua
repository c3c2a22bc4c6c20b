-- Runs acquire and release for callers that have nothing to do with each other, each for a lock of its own. Eight ARGV stand for one
-- of them: 'a', hold, TTL, 't', 'm' or '' (with a token key, with that and a mark, or without), n, keep, holder, text; or 'r', hold, channel,
-- word, word2 or '', and three of ''.
-- Returns what each returned, or its error.
local results, key = {}, 0
for arg = 1, #ARGV, 8 do
  local kind, a, b, c, d, e, holder, text = unpack(ARGV, arg, arg + 7)
  local ok, result
  key = key + 1
  if kind == 'r' then
    ok, result = pcall(release, KEYS[key], a, b, c, d ~= '' and d or nil)
  elseif c == 't' then
    ok, result = pcall(acquire, KEYS[key], a, b, KEYS[key + 1], d, e, holder, text)
    key = key + 1
  elseif c == 'm' then
    ok, result = pcall(acquire, KEYS[key], a, b, KEYS[key + 1], d, e, holder, text, KEYS[key + 2])
    key = key + 2
  else
    ok, result = pcall(acquire, KEYS[key], a, b)
  end
  if not ok and type(result) ~= 'table' then result = {err = result} end
  results[#results + 1] = result
end
return results
