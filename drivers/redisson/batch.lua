-- Runs acquire and release for callers that have nothing to do with each other, each for a lock of its own. ARGV begins with the word and word2
-- of acquireInTurn. Then eight ARGV stand for one caller: 'a', hold, TTL, 't', 'm' or '' (with a token key, with that and a mark, or without) and,
-- for one in line, its place, n, keep, holder, text; or 'r', hold, channel, word, word2 or '', and three of ''.
-- Returns what each returned, or its error.
local tell, tell2, results, key = ARGV[1], ARGV[2], {}, 0
for arg = 3, #ARGV, 8 do
  local kind, a, b, c, d, e, holder, text = unpack(ARGV, arg, arg + 7)
  local ok, result
  key = key + 1
  if kind == 'r' then
    ok, result = pcall(release, KEYS[key], a, b, c, d ~= '' and d or nil)
  else
    local name, token, mark = KEYS[key], nil, nil
    local with = string.sub(c, 1, 1)
    if with == 't' or with == 'm' then
      key = key + 1
      token = KEYS[key]
      if with == 'm' then
        key = key + 1
        mark = KEYS[key]
      end
      c = string.sub(c, 2)
    end
    if c == '' then
      ok, result = pcall(acquire, name, a, b, token, d, e, holder, text, mark)
    else
      ok, result = pcall(acquireInTurn, c, tell, tell2, name, a, b, token, d, e, holder, text, mark)
    end
  end
  if not ok and type(result) ~= 'table' then result = {err = result} end
  results[#results + 1] = result
end
return results
