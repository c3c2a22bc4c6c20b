-- Removes the value ARGV[1] from the lock KEYS[1] and, unless ARGV[2] is empty, sends the listeners of this channel an empty message.
-- Returns how many listeners there were, or -1 if the lock does not have this value.
local held = redis.pcall('GET', KEYS[1])
if held ~= ARGV[1] then return -1 end
redis.call('DEL', KEYS[1])
if ARGV[2] == '' then return 0 end
local heard = redis.pcall('PUBLISH', ARGV[2], '')
if type(heard) ~= 'number' then return 0 end -- not permitted
return heard
