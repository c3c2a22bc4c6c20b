-- Ends every hold of the lock KEYS[1] and tells the waiters on channel ARGV[1] by the commands ARGV[2..].
-- Returns 1, 0 if nobody holds it, or -1 if it is sealed, and then it stays. A key that is no hash is an error and stays.
if redis.call('HLEN', KEYS[1]) == 0 then return 0 end
if redis.call('HEXISTS', KEYS[1], 'dsync:seal') == 1 then return -1 end
redis.call('DEL', KEYS[1])
for i = 2, #ARGV do redis.call(ARGV[i], ARGV[1], '0') end
return 1
