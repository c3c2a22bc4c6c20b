-- Takes the seal of the lock KEYS[1] away, if the id ARGV[1] is next to it, and tells those who wait on channel ARGV[2], or for the read-write
-- lock on channel ARGV[3], by the commands ARGV[4..]. Returns 1, or 0 if there is no such seal.
if redis.call('HGET', KEYS[1], 'dsync:unseal') ~= ARGV[1] then return 0 end
for i = 4, #ARGV do
  redis.call(ARGV[i], ARGV[2], '0')
  redis.call(ARGV[i], ARGV[3], '1') -- for all in Java that wait
  redis.call(ARGV[i], ARGV[3], '0') -- for one that was about to, and would do so for 100 years
end
redis.call('DEL', KEYS[1])
return 1
