-- Makes the hold ARGV[1] of the lock KEYS[1] a seal and tells the waiters on channel ARGV[2] by the commands ARGV[3..].
-- KEYS[2] is the key of the tokens, if there is one; the last of them is the value of the seal. Returns 1, or 0 if there is no such hold, or
-- no more: Java's read-write lock is granted beside other locks, and where one is, the hold of the lock ends, and nothing is sealed. Nothing is
-- granted beside a hold that writes.
-- The seal is a write-locked read-write lock, because that kind is granted beside all others, and what unlocks it removes them. The seal has
-- a TTL, of 100 years, because Java's fenced and fair locks take a lock without one for free, or spin on it.
local call = redis.call
if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local alone = call('HEXISTS', KEYS[1], 'mode') == 0 or string.sub(ARGV[1], -6) == ':write'
if alone then
  call('HSET', KEYS[1], 'mode', 'write', 'dsync:seal', KEYS[2] and call('GET', KEYS[2]) or '0')
  call('PEXPIRE', KEYS[1], 3153600000000)
end
call('HDEL', KEYS[1], ARGV[1])
for i = 3, #ARGV do call(ARGV[i], ARGV[2], '0') end
return alone and 1 or 0
