-- Marks the lock KEYS[1], if ARGV[1] holds it, by the key KEYS[2], which holds the floor ARGV[2], and takes ARGV[3] tokens above that
-- out of KEYS[3], if that is given; ARGV[4] is 'time' where tokens are the time. The keys stay for ever.
-- Returns the first token (1 if there is none), or 0 if there is no such hold.
local call = redis.call
if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local floor = math.max(tonumber(ARGV[2]), tonumber(call('GET', KEYS[2]) or '0'))
call('SET', KEYS[2], string.format('%.0f', floor))
if not KEYS[3] then return 1 end
local last = tonumber(call('GET', KEYS[3]) or '0')
if ARGV[4] == 'time' then
  local time = call('TIME')
  last = math.max(last, time[1] * 1000000 + time[2])
end
last = math.max(last, floor)
call('SET', KEYS[3], string.format('%.0f', last + ARGV[3]))
return last + 1
