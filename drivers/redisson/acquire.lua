-- acquire takes the lock name for a hold for ttl milliseconds, and n tokens out of the key token (none if that is nil), which is kept
-- keep milliseconds, or for ever if keep is ''.
--
-- It returns the first token (1 if there is none), or {first, how many}; if another hold has the lock, 0 if it has no TTL, else
-- -1 - the milliseconds that are left. The same hold may ask again: it takes new tokens and starts its TTL anew.
local function acquire(name, hold, ttl, token, n, keep)
  if redis.call('EXISTS', name) == 1 and redis.call('HEXISTS', name, hold) == 0 then
    local left = redis.call('PTTL', name)
    if left < 0 then return 0 end
    return -1 - left
  end
  local first, block = 1, 1
  if token then
    first, block = redis.call('INCR', token), tonumber(n)
    if keep == '' then
      if block > 1 then redis.call('INCRBY', token, block - 1) end
    else
      if first == 1 or block > 1 then
        -- A count begins at the time, and blocks never make it run away from that: so it goes on rising when the key is lost.
        local time = redis.call('TIME')
        local now = time[1] * 1000000 + time[2]
        if first == 1 then
          first = now
          redis.call('SET', token, string.format('%.0f', first + block - 1))
        elseif first > now then
          block = 1
        elseif block > 1 then
          redis.call('INCRBY', token, block - 1)
        end
      end
      redis.call('PEXPIRE', token, keep)
    end
  end
  redis.call('HSET', name, hold, 1)
  redis.call('PEXPIRE', name, ttl)
  if block == 1 then return first end
  return {first, block}
end
