-- Sets the limit of the permits of the name KEYS[1] to ARGV[1], for good, and tells who waits on channel ARGV[2] by the commands ARGV[3..].
-- KEYS[2] are the ends. Returns 1, or -1 if the name is sealed.
local now = clock()
local _, held, over, sealed = count(KEYS[1], KEYS[2], now)
if sealed then return -1 end
purge(KEYS[2], now, over)
if held > 0 then call('PERSIST', KEYS[2]) end
call('SET', KEYS[1], ARGV[1] - held)
tell(ARGV[1] - held, unpack(ARGV, 2))
return 1
