-- Runs release and acquire for callers that have nothing to do with each other, each for a lock of its own. The names are the KEYS; the other keys, and
-- the channels, are made of them here. ARGV begins with word, word2 and label of acquireInTurn, the prefix of the keys of tokens, keep, the
-- message of a release, how many are to be released, and their holds. Groups of acquires follow: how many, their place in line or '', TTL, n or '' without tokens, 'm' to ask for the
-- mark or '', text, and the holds.
-- Returns what each returned, or its error.
local word, word2, label, prefix, keep, message, releases = unpack(ARGV, 1, 7)
local results, arg = {}, 7

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
  for i = 1, tonumber(count) do
    local name, hold = KEYS[#results + 1], ARGV[arg + i]
    local token, holder, mark
    if n then
      local after = suffix(name)
      token, holder, mark = prefix .. after, 'dsync_holder' .. after, marks == 'm' and 'dsync_moved' .. after or nil
    end
    if place == '' then
      add(pcall(acquire, name, hold, ttl, token, n, keep, holder, text, mark))
    else
      add(pcall(acquireInTurn, place, word, word2, label, name, hold, ttl, token, n, keep, holder, text, mark))
    end
  end
  arg = arg + count
end
return results
