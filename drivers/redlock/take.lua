-- Gives the lock KEYS[1] the value ARGV[1] for ARGV[2] milliseconds, if it has none. Returns OK, false if the lock has another value, or an error
-- if that is a seal, which begins with ARGV[3].
local done = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if done then return done end
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'string' and string.sub(held, 1, #ARGV[3]) == ARGV[3] then
  return redis.error_reply('SEALED the lock has moved to another backend')
end
return false
