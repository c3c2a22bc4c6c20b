local call, try = redis.call, redis.pcall

-- take gives the lock name the value for ttl milliseconds, if it has none. It returns OK, false if the lock has another value, or an error if that
-- is a seal, which begins with seal ('': nobody seals).
local function take(name, value, ttl, seal)
  local done = call('SET', name, value, 'NX', 'PX', ttl)
  if done then return done end
  local held = seal ~= '' and try('GET', name)
  if type(held) == 'string' and string.sub(held, 1, #seal) == seal then
    return redis.error_reply('SEALED the lock has moved to another backend')
  end
  return false
end
