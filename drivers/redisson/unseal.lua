-- Takes the seal of the lock KEYS[1] away, if the id ARGV[1] is next to it, and tells those who wait on channel ARGV[2] by the commands
-- ARGV[3..]. Returns 1, or 0 if there is no such seal.
if redis.call('HGET', KEYS[1], 'dsync:unseal') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
for i = 3, #ARGV do redis.call(ARGV[i], ARGV[2], '0') end
return 1
