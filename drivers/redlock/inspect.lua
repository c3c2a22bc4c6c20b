-- Returns the value of the lock KEYS[1], false if there is none, and for how many milliseconds it lasts.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then value = '' end -- another kind of key
return {value, redis.call('PTTL', KEYS[1])}
