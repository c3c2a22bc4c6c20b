-- intentFor is how long a waiter keeps others from reading, unless it asks again. It asks every 5 s.
local intentFor = 6000

-- acquireWrite is acquire for a hold that writes. How is 'wait' for one that waits if it is refused.
local function acquireWrite(name, intent, token, hold, ttl, how, prefix, ...)
  local left = call('PTTL', name)
  local mode = left ~= -2 and call('HGET', name, 'mode')
  if left ~= -2 and mode ~= 'read' and not (mode and call('HEXISTS', name, hold) == 1) then return taken(name, mode, left) end
  if mode == 'read' then
    local others = readersOf(name, prefix, nil, some)
    if others.longest == -2 and not others.all and not others.failed then others = readersOf(name, prefix, nil, all) end
    if others.failed then return others.failed end
    remove(name, others.dead)
    if others.longest ~= -2 then
      if how == 'wait' then
        call('HSET', intent, hold, 1)
        call('PEXPIRE', intent, intentFor)
      end
      return {'held', others.all and others.longest or left}
    end
  end
  call('DEL', intent)
  local answer, value = grant(token, ...)
  call('HSET', name, 'mode', 'write', hold, value)
  call('PEXPIRE', name, ttl)
  return answer
end
