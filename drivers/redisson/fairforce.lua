-- Ends every hold of the lock KEYS[1], whose waiters are in KEYS[2] and KEYS[3], and tells the first of them, and those who wait to read or
-- write: on the channel ARGV[5] if it was held so. Returns 1, or 0 if nobody holds it. A key that is no hash is an error and stays.
local first = head(lineOf(KEYS[2], KEYS[3]), clock())
if call('HLEN', KEYS[1]) == 0 then return 0 end
local mode = call('HGET', KEYS[1], 'mode')
call('DEL', KEYS[1])
if first then tell(first, unpack(ARGV)) end
publish(mode == 'write' and '1' or '0', mode and ARGV[5] or ARGV[1], ARGV[2], ARGV[3])
return 1
