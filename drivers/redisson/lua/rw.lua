-- The read-write lock of Redisson is a hash with a field mode, 'read' or 'write',
-- and one for each hold: see docs/redisson.md. Of dsync alone is the hash intent:
-- those who wait to write while others read. While it is there, no further hold of
-- dsync reads. Keys of other holds are looked at before anything is changed: while
-- a slot moves, the server refuses keys that are gone. See also fair.lua.

-- taken is the answer for a lock that is written, or else is no read-write lock, in whose place mode is false.
local function taken(name, mode, left)
  if sealed(name, left) then return {'sealed'} end
  return {mode and 'held' or 'elsewhere', left}
end

-- grant takes tokens: see take. It returns what acquire returns, and what the
-- lock keeps about the hold.
local function grant(...)
  local first, block, value = take(...)
  return granted(first, block), value
end

-- acquireRead is acquire for a hold that reads, whose own key is timeout.
local function acquireRead(name, timeout, intent, token, hold, ttl, ...)
  local left = call('PTTL', name)
  local mode = left ~= -2 and call('HGET', name, 'mode')
  if left ~= -2 and mode ~= 'read' then return taken(name, mode, left) end
  if left == -2 or call('HEXISTS', name, hold) == 0 then
    local intended = call('PTTL', intent)
    if intended ~= -2 then return {'held', intended} end
  end
  local answer, value = grant(token, ...)
  call('HSET', name, 'mode', 'read', hold, 1)
  if left ~= -1 and left < tonumber(ttl) then call('PEXPIRE', name, ttl) end
  call('SET', timeout, value, 'PX', ttl) -- last, so that the hold that lasts longest lasts as long as the lock: see releaseRead
  return answer
end
