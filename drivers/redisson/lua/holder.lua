-- Writes about the hold ARGV[1] of the lock KEYS[1], if there is such a hold, the text ARGV[3] into the key ARGV[2], for ARGV[4]
-- milliseconds at least.
local call = redis.call
if call('HEXISTS', KEYS[1], ARGV[1]) == 1 then note(ARGV[2], ARGV[1], ARGV[3], ARGV[4]) end
return 1
