-- Gives the lock KEYS[1] the value ARGV[2], if its value begins with ARGV[1]. Returns 1, or -1 if it does not.
local held = redis.pcall('GET', KEYS[1])
if type(held) ~= 'string' or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return -1 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', '3153600000000')
return 1
