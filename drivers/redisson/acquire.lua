-- Takes the lock KEYS[1] for the hold ARGV[2] for ARGV[1] milliseconds.
-- Tokens: ARGV[3] of them out of KEYS[2], which is kept ARGV[4] milliseconds, or for ever and counted by one if ARGV[4] is ''.
-- Returns the first token (1 without KEYS[2]), or {first, how many}; if another hold has the lock, 0 if it has no TTL, else
-- -1 - the milliseconds that are left. The same hold may ask again: it takes new tokens and starts its TTL anew.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then return 0 end
  return -1 - left
end
local first, n = 1, 1
if KEYS[2] then
  n = tonumber(ARGV[3])
  if ARGV[4] == '' then
    first = redis.call('INCRBY', KEYS[2], n) - n + 1
  else
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local last = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
    -- Tokens never run away from the clock: after a flush they go on from there.
    if last > now then n = 1 else last = now end
    first = last + 1
    redis.call('SET', KEYS[2], string.format('%.0f', last + n), 'PX', ARGV[4])
  end
end
redis.call('HSET', KEYS[1], ARGV[2], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
if n == 1 then return first end
return {first, n}
