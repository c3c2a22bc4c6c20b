-- sealed says whether a lock is sealed that is held for left milliseconds (a
-- seal lasts for 100 years: see seal.lua).
local function sealed(name, left) return left > 1576800000000 and call('HEXISTS', name, 'dsync:seal') == 1 end

-- acquire takes the lock name for a hold for ttl milliseconds, and n tokens out
-- of the sequence token (none if that is nil). It returns granted(), with the
-- mark if there is the key mark. If another hold has the lock, it returns
-- {'held', the milliseconds that are left, or -1 if there is no TTL},
-- {'sealed'}, or {'elsewhere', left} if a read-write lock has it, whose end is
-- told on its own channel. The same hold may ask again.
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
    if sealed(name, left) then return {'sealed'} end
    return {call('HEXISTS', name, 'mode') == 1 and 'elsewhere' or 'held', left}
  end
  local first, block, value = take(token, n, kind, text)
  call('HSET', name, hold, value)
  call('PEXPIRE', name, ttl)
  return granted(first, block, marked)
end
