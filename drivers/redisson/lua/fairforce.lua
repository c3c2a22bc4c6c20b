-- Ends every hold of the lock KEYS[1], whose waiters are in KEYS[2] and KEYS[3], and tells the first of them, and those on channel ARGV[5] if
-- it is a read-write lock. Returns 1, or 0 if nobody holds it. A key that is no hash is an error and stays.
local first = head(lineOf(KEYS[2], KEYS[3]))
if call('HLEN', KEYS[1]) == 0 then return 0 end
local mode = call('HGET', KEYS[1], 'mode')
call('DEL', KEYS[1])
if first then tell(first, unpack(ARGV)) end
if mode then publish(mode == 'write' and '1' or '0', ARGV[5], ARGV[2], ARGV[3]) end
return 1
