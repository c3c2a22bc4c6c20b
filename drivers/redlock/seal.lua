-- Gives the lock KEYS[1] the value ARGV[2] for 100 years, if it has the value ARGV[1], and tells the listeners of the channel ARGV[3].
-- Returns 1, or -1 if it has another value or none. A value without a TTL would not do: some programs take that for one that was left
-- behind, and let it expire.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return -1 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', '3153600000000')
redis.pcall('PUBLISH', ARGV[3], '')
return 1
