-- sealed says whether a lock is sealed that is held for left milliseconds (a
-- seal lasts for 100 years: see seal.lua).
local function sealed(name, left) return left > 1576800000000 and call('HEXISTS', name, 'dsync:seal') == 1 end

-- elsewhere is the answer for a lock that a hold has for left milliseconds
-- whose end is told on the other one of the two channels of the name, that of
-- the lock and that of the read-write lock.
local function elsewhere(left) return -4100000000000 - (left < 0 and 100000000000 or math.min(left, 100000000000)) end

-- acquire takes the lock name for a hold for ttl milliseconds, and n tokens out
-- of the sequence token (none if that is nil): see take.
--
-- It returns the first token (1 if there is none), or {first, how many}. If
-- there is the key mark, that is -5000000000000 - the first token, or {first,
-- how many, 1}. If another hold has the lock, it returns 0 if that has no TTL
-- (or one of more than 120 years), else -1 - the milliseconds that are left,
-- -4000000000000 if it is sealed, and elsewhere() if it is held by a read-write
-- lock. The same hold may ask again: it takes new tokens and starts its TTL
-- anew.
local function acquire(name, hold, ttl, token, n, kind, text, mark)
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
  local first, block, value = take(token, n, kind, text)
  call('HSET', name, hold, value)
  call('PEXPIRE', name, ttl)
  if block == 1 then return marked and -5000000000000 - first or first end
  return marked and {first, block, 1} or {first, block}
end
