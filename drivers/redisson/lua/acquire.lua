local call = redis.call

-- now is the server's time in microseconds, and that as text. It stands still while a script runs.
local micros, microsText
local function now()
  if not micros then
    local time = call('TIME')
    microsText = time[1] .. string.sub('000000', #time[2] + 1) .. time[2] -- faster than to format a number
    micros = tonumber(microsText)
  end
  return micros, microsText
end

-- note writes a text for people about a hold into the key holder, for an hour, or as long as the hold lasts. That key is no KEYS of the
-- script: where a user has no right to it, or a slot moves, the lock is granted all the same.
local function note(holder, hold, text, ttl)
  redis.pcall('SET', holder, hold .. '\n' .. text, 'PX', #ttl < 7 and '3600000' or math.max(ttl, 3600000))
end

-- take takes n tokens out of the key token, 0 if that is nil, and returns the first and how many. That key is made for keep milliseconds, or
-- for ever if keep is ''.
local function take(token, n, keep)
  if not token then return 1, 1 end
  local block = tonumber(n)
  if keep == '' then
    local first = call('INCR', token)
    if block > 1 then call('INCRBY', token, block - 1) end
    return first, block
  end
  -- Tokens are the time, so that they go on rising when the key is lost or ends, and when a replica takes over that has not
  -- seen the last of them. Blocks never make them run away from that.
  local first, text = now()
  local last = call('SET', token, block == 1 and text or string.format('%.0f', first + block - 1), 'KEEPTTL', 'GET')
  if not last then
    call('PEXPIRE', token, keep)
  elseif (#last ~= #text or last >= text) and tonumber(last) >= first then -- numbers of as many digits compare as texts, and faster
    first, block = tonumber(last) + 1, 1
    call('SET', token, string.format('%.0f', first), 'KEEPTTL')
  end
  return first, block
end

-- sealed says whether a lock is sealed that is held for left milliseconds (a seal lasts for 100 years: see seal.lua).
local function sealed(name, left) return left > 1576800000000 and call('HEXISTS', name, 'dsync:seal') == 1 end

-- elsewhere is the answer for a lock that a hold has for left milliseconds whose end is told on the other one of the two channels of the
-- name, that of the lock and that of the read-write lock.
local function elsewhere(left) return -4100000000000 - (left < 0 and 100000000000 or math.min(left, 100000000000)) end

-- acquire takes the lock name for a hold for ttl milliseconds, and n tokens out of the key token (none if that is nil): see take. With
-- tokens, text is what the key holder says about the hold.
--
-- It returns the first token (1 if there is none), or {first, how many}. If there is the key mark, that is -5000000000000 - the first
-- token, or {first, how many, 1}. If another hold has the lock, it returns 0 if that has no TTL (or one of more than 120 years), else
-- -1 - the milliseconds that are left, -4000000000000 if it is sealed, and elsewhere() if it is held by a read-write lock. The same
-- hold may ask again: it takes new tokens and starts its TTL anew.
local function acquire(name, hold, ttl, token, n, keep, holder, text, mark)
  local left, marked = -2, false
  if mark then
    local there = call('EXISTS', name, mark, mark) -- one for the lock, two for the mark: one call, as without a mark
    marked = there >= 2
    if there % 2 == 1 then left = call('PTTL', name) end
  else
    left = call('PTTL', name)
  end
  if left ~= -2 and call('HEXISTS', name, hold) == 0 then
    if sealed(name, left) then return -4000000000000 end
    if call('HEXISTS', name, 'mode') == 1 then return elsewhere(left) end
    if left < 0 or left > 3784320000000 then return 0 end
    return -1 - left
  end
  if token then note(holder, hold, text, ttl) end
  local first, block = take(token, n, keep)
  call('HSET', name, hold, '1')
  call('PEXPIRE', name, ttl)
  if block == 1 then return marked and -5000000000000 - first or first end
  return marked and {first, block, 1} or {first, block}
end
