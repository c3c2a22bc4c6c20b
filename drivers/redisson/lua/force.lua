-- Ends every hold of the lock KEYS[1] and tells the waiters on channel ARGV[1], or ARGV[5] if it is a read-write lock, by the commands ARGV[2]
-- and ARGV[3]. For a fair lock, whose waiters are in KEYS[2] and KEYS[3], it tells the first of these. Returns 1, 0 if nobody holds it, or -1
-- if it is sealed, and then it stays. A key that is no hash is an error and stays.
if call('HLEN', KEYS[1]) == 0 then return 0 end
if call('HEXISTS', KEYS[1], 'dsync:seal') == 1 then return -1 end
local mode = call('HGET', KEYS[1], 'mode')
call('DEL', KEYS[1])
tellFair(KEYS[2], KEYS[3], unpack(ARGV, 1, 4))
if mode or not KEYS[2] then publish(mode == 'write' and '1' or '0', mode and ARGV[5] or ARGV[1], ARGV[2], ARGV[3]) end
return 1
