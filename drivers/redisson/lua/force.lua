-- Ends every hold of the lock KEYS[1] and tells the waiters on channel ARGV[1], or ARGV[2] if it is a read-write lock, by the commands
-- ARGV[3..]. Returns 1, 0 if nobody holds it, or -1 if it is sealed, and then it stays. A key that is no hash is an error and stays.
local call = redis.call
if call('HLEN', KEYS[1]) == 0 then return 0 end
if call('HEXISTS', KEYS[1], 'dsync:seal') == 1 then return -1 end
local mode = call('HGET', KEYS[1], 'mode')
call('DEL', KEYS[1])
for i = 3, #ARGV do call(ARGV[i], mode and ARGV[2] or ARGV[1], mode == 'write' and '1' or '0') end
return 1
