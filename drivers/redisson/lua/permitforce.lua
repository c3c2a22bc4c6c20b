-- Ends all holds of the permits of the name KEYS[1], whose ends are KEYS[2],
-- and tells who waits on channel ARGV[2] by the commands ARGV[3..]. ARGV[1] is
-- '' where these do not count all who listen. Returns 1, 0 if nobody holds any,
-- or -1 if the name is sealed.
local free, held, over, sealed = count(KEYS[1], KEYS[2], (clock()))
if sealed then return -1 end
if held == 0 then return 0 end
call('DEL', KEYS[2])
if free then forget(KEYS[1], tell(call('INCRBY', KEYS[1], over + held), unpack(ARGV, 2)), ARGV[1]) end
return 1
