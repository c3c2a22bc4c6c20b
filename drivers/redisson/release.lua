-- Ends the hold ARGV[1] of the lock KEYS[1] and tells the waiters on channel ARGV[2] by the commands ARGV[3..].
-- Returns how many subscribers were told, or -1 if there is no such hold.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return -1 end
local told = 0
for i = 3, #ARGV do told = told + redis.call(ARGV[i], ARGV[2], '0') end
return told
