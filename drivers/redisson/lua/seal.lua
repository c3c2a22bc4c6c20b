-- Makes the hold ARGV[1] of the lock KEYS[1], whose last token is ARGV[2], a
-- seal, and tells the waiters on channel ARGV[3] by the commands ARGV[4..].
-- Returns 1, or 0 if there is no such hold, or Java's read-write lock was granted
-- beside it; then the hold ends. The seal is a write-locked read-write lock, which
-- no other kind is granted beside. It has a TTL, of 100 years, because Java's
-- fenced and fair locks take a lock without one for free, or spin on it.
local call = redis.call
if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local alone = call('HEXISTS', KEYS[1], 'mode') == 0 or string.sub(ARGV[1], -6) == ':write'
if alone then
  call('HSET', KEYS[1], 'mode', 'write', 'dsync:seal', ARGV[2])
  call('PEXPIRE', KEYS[1], 3153600000000)
end
call('HDEL', KEYS[1], ARGV[1])
for i = 4, #ARGV do call(ARGV[i], ARGV[3], '0') end
return alone and 1 or 0
