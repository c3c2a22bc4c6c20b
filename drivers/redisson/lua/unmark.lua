-- Removes the mark KEYS[2] of the lock KEYS[1], if ARGV[1] holds that. Returns 1, or 0 if there is no such hold.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[2])
return 1
