-- Gives the hold ARGV[3i-2] of the lock KEYS[i] ARGV[3i-1] milliseconds from now, for each i. If it reads a read-write lock, ARGV[3i] is its
-- own key, which gets that time, and the lock no less; else that is ''. If ARGV[3i-1] is 0, nothing is changed.
-- Returns a character for each: 1 done, 0 there is no such hold, p not permitted, r the server is a replica, e something else is wrong
-- with the key.
local function expire(key, ttl) return ttl == '0' and 1 or redis.pcall('PEXPIRE', key, ttl) end

local function renew(name, hold, ttl, timeout)
  local held = redis.pcall('HEXISTS', name, hold)
  if held ~= 1 or timeout == '' then return held == 1 and expire(name, ttl) or held end
  local own = redis.pcall('PTTL', timeout)
  if type(own) ~= 'number' then return own end
  if own == -2 then return 0 end
  local left = redis.pcall('PTTL', name)
  if type(left) == 'number' and left ~= -1 and left < tonumber(ttl) then left = redis.pcall('PEXPIRE', name, ttl) end
  if type(left) ~= 'number' then return left end
  return expire(timeout, ttl) -- last: see acquireRead
end

local done = {}
for i, name in ipairs(KEYS) do
  local held = renew(name, ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
  if type(held) == 'number' then
    done[i] = held
  elseif held.err and string.find(held.err, 'WRONGTYPE', 1, true) then
    done[i] = 0
  elseif string.find(held.err, 'NOPERM', 1, true) or string.find(held.err, 'The user executing the script', 1, true) then
    done[i] = 'p'
  elseif string.find(held.err, 'READONLY', 1, true) or string.find(held.err, 'MASTERDOWN', 1, true) then
    done[i] = 'r'
  else
    done[i] = 'e'
  end
end
return table.concat(done)
