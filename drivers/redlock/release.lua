-- Removes the value ARGV[1] from the lock KEYS[1] and tells the listeners of the channel ARGV[2].
-- Returns how many listeners there were, or -1 if the lock does not have this value.
local held = redis.pcall('GET', KEYS[1])
if held ~= ARGV[1] then return -1 end
redis.call('DEL', KEYS[1])
local heard = redis.pcall('PUBLISH', ARGV[2], '')
if type(heard) ~= 'number' then return 0 end -- not permitted
return heard
