-- Runs release and acquire for callers that have nothing to do with each other,
-- each for a lock of its own, whose names are the KEYS. ARGV begins with word,
-- word2 and label of acquireInTurn, the kind of tokens, the message of a release,
-- how many are to be released, and their holds. Groups of acquires follow: how
-- many, their place in line or '', TTL, n or '' without tokens, 'm' to ask for
-- the mark or '', text, and the holds, each followed by its sequence if there are
-- tokens. Returns what each returned, or its error.
local word, word2, label, kind, message, releases = unpack(ARGV, 1, 6)
local results, arg = {}, 6

local function add(ok, result)
  if not ok and type(result) ~= 'table' then result = {err = result} end
  results[#results + 1] = result
end

for i = 1, tonumber(releases) do
  local name = KEYS[i]
  add(pcall(release, name, ARGV[arg + i], 'redisson_lock__channel' .. suffix(name), message, word, word2 ~= '' and word2 or nil))
end
arg = arg + releases

while arg < #ARGV do
  local count, place, ttl, n, marks, text = unpack(ARGV, arg + 1, arg + 6)
  arg, n = arg + 6, tonumber(n)
  for _ = 1, tonumber(count) do
    local name, hold, token, mark = KEYS[#results + 1], ARGV[arg + 1], nil, nil
    arg = arg + 1
    if n then
      token, mark = ARGV[arg + 1], marks == 'm' and 'dsync_moved' .. suffix(name) or nil
      arg = arg + 1
    end
    if place == '' then
      add(pcall(acquire, name, hold, ttl, token, n, kind, text, mark))
    else
      add(pcall(acquireInTurn, place, word, word2, label, name, hold, ttl, token, n, kind, text, mark))
    end
  end
end
return results
