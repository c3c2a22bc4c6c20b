-- Ends all holds of the permits of the name KEYS[1], whose ends are KEYS[2], and tells who waits on channel ARGV[1] by the commands ARGV[2..].
-- Returns 1, 0 if nobody holds any, or -1 if the name is sealed.
local free, held, over, sealed = count(KEYS[1], KEYS[2], (clock()))
if sealed then return -1 end
if held == 0 then return 0 end
call('DEL', KEYS[2])
if free then tell(call('INCRBY', KEYS[1], over + held), unpack(ARGV)) end
return 1
