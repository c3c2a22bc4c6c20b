-- Carries out a change of the latch KEYS[1], ARGV[1]: 'set' to ARGV[2], 'down' or
-- 'delete', unless KEYS[2] or KEYS[3] have its id ARGV[3]. Returns 1, or 0: there
-- is a latch ('set'), or none. The end of a latch is told on channel ARGV[5] with
-- 0, and its begin with 1, by the commands ARGV[6..]. Unlike in Redisson, a
-- deletion is told as an end.
local call = redis.call
for i = 2, 3 do
  local known = call('HGET', KEYS[i], ARGV[3])
  if known then return tonumber(known) end
end
local left = tonumber(call('GET', KEYS[1]) or 0)
if not left then return redis.error_reply('WRONGTYPE the value is not a number') end
local set = ARGV[1] == 'set'
local did = set == (left <= 0)

-- An id is known for ARGV[4] ms at least. A key takes ids for that long, and then
-- lasts for as long again, while the other key takes ids.
local known_for, notes = tonumber(ARGV[4]), KEYS[2]
local first = call('PTTL', KEYS[2])
if first < known_for and (first >= 0 or call('PTTL', KEYS[3]) >= known_for) then notes = KEYS[3] end
call('HSET', notes, ARGV[3], did and 1 or 0)
if call('PTTL', notes) < known_for then call('PEXPIRE', notes, 2 * known_for) end

if not did then return 0 end
if ARGV[1] == 'down' and left > 1 then
  call('DECR', KEYS[1])
  return 1
end
if set then call('SET', KEYS[1], ARGV[2]) else call('DEL', KEYS[1]) end
for i = 6, #ARGV do call(ARGV[i], ARGV[5], set and '1' or '0') end
return 1
