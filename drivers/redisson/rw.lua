-- The read-write lock of Redisson is a hash with a field mode, 'read' or 'write', and one for each hold. A hold that reads has a key besides,
-- which ends with it: prefix .. hold .. ':rwlock_timeout:' and the number of its count. The hash lasts as long as the longest of them. A
-- hold that writes has ':write' behind it, and lasts as long as the hash.
--
-- Of dsync alone is the hash intent: those who wait to write while others read. While it is there, no further hold of dsync reads.
--
-- Keys of other holds are looked at before anything is changed: while the slot of the lock moves to another node, the server refuses keys
-- that are gone, and the script ends. See also fair.lua.

-- intentFor is how long a waiter keeps others from reading, unless it asks again. It asks every 5 s.
local intentFor = 6000

-- refused is the answer for a lock that cannot be had for left milliseconds, of which -1 is for ever.
local function refused(left)
  if left < 0 or left > 3784320000000 then return 0 end
  return -1 - left
end

-- taken is the answer for a lock that is written, or else is no read-write lock, in whose place mode is false.
local function taken(name, mode, left)
  if sealed(name, left) then return -4000000000000 end
  return mode and refused(left) or elsewhere(left)
end

-- some and all are how many holds are looked at, any ones of them first: mostly these say what there is to know.
local some, all = 8, 1000000000

-- readersOf looks at some holds but one that read a lock. It returns those that live, each followed by the milliseconds that it has left; the
-- longest of these, or -2; those that are dead; whether these were all; or else an error.
local function readersOf(name, prefix, but, count)
  local r = {living = {}, longest = -2, dead = {}}
  local fields = call('HRANDFIELD', name, count, 'WITHVALUES')
  for i = 1, #fields, 2 do
    local hold, left = fields[i], -2
    for n = 1, hold ~= but and tonumber(fields[i + 1]) or 0 do
      local rest = redis.pcall('PTTL', prefix .. hold .. ':rwlock_timeout:' .. n)
      if type(rest) ~= 'number' then
        if string.find(rest.err, 'non local key', 1, true) then rest = {err = 'TRYAGAIN the keys of the lock are on two nodes'} end
        return {failed = rest}
      end
      left = math.max(left, rest)
    end
    if left ~= -2 then
      r.living[#r.living + 1], r.living[#r.living + 2] = hold, tostring(left)
      r.longest = math.max(r.longest, left)
    elseif hold ~= 'mode' and hold ~= but then
      r.dead[#r.dead + 1] = hold
    end
  end
  r.all = #fields < 2 * count
  return r
end

-- remove removes holds of a lock, of which the field mode stays.
local function remove(name, holds)
  for i = 1, #holds, most do call('HDEL', name, unpack(holds, i, math.min(i + most - 1, #holds))) end
end

-- grant takes tokens for a hold and writes about it: see acquire. It returns what that returns.
local function grant(hold, ttl, token, n, keep, holder, text)
  if token then note(holder, hold, text, ttl) end
  local first, block = take(token, n, keep)
  return block == 1 and first or {first, block}
end

-- acquireRead is acquire for a hold that reads, whose own key is timeout.
local function acquireRead(name, timeout, intent, token, hold, ttl, ...)
  local left = call('PTTL', name)
  local mode = left ~= -2 and call('HGET', name, 'mode')
  if left ~= -2 and mode ~= 'read' then return taken(name, mode, left) end
  if call('HEXISTS', name, hold) == 0 then
    local intended = call('PTTL', intent)
    if intended ~= -2 then return refused(intended) end
  end
  local answer = grant(hold, ttl, token, ...)
  call('HSET', name, 'mode', 'read', hold, 1)
  call('SET', timeout, 1, 'PX', ttl)
  if left ~= -1 and left < tonumber(ttl) then call('PEXPIRE', name, ttl) end
  return answer
end

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
      return refused(others.all and others.longest or left)
    end
  end
  call('DEL', intent)
  local answer = grant(hold, ttl, token, ...)
  call('HSET', name, 'mode', 'write', hold, 1)
  call('PEXPIRE', name, ttl)
  return answer
end

-- tellFair tells the first who waits for a fair lock of the name, if there is one. Nobody is worse off than by a message that is lost if
-- the queue is on another node by now.
local function tellFair(queue, times, ...)
  if queue then
    pcall(function(...)
      local first = head(lineOf(queue, times), clock())
      if first then tell(first, ...) end
    end, ...)
  end
end

-- releaseRead ends a hold that reads, and tells who waits if it was the last that lived. If it was the one that lasts longest, the lock lasts as
-- long as the others from then on. It returns how many were told, or -1 if there is no
-- such hold.
local function releaseRead(name, timeout, hold, prefix, channel, word, word2, ...)
  if call('HGET', name, 'mode') ~= 'read' or call('HEXISTS', name, hold) == 0 then
    call('DEL', timeout)
    return -1
  end
  local others = readersOf(name, prefix, hold, some)
  if not others.failed and not others.all and (others.longest == -2 or call('PTTL', timeout) >= call('PTTL', name)) then
    others = readersOf(name, prefix, hold, all)
  end
  if others.failed then return others.failed end
  local there, told = call('DEL', timeout) == 1, 0
  if others.longest == -2 then
    call('DEL', name)
    told = publish('0', channel, word, word2)
    tellFair(...)
  else
    others.dead[#others.dead + 1] = hold
    remove(name, others.dead)
    if others.all then call('PEXPIRE', name, others.longest) end
  end
  return there and told or -1
end

-- releaseWrite ends a hold that writes, and what it intended if intent is not nil, and tells who waits. It returns how many were told, or -1
-- if there is no such hold.
local function releaseWrite(name, intent, hold, prefix, channel, word, word2, ...)
  local intended = intent and call('HDEL', intent, hold) == 1
  local there = call('HEXISTS', name, hold) == 1
  if there then call('DEL', name) end
  local told = (there or intended) and publish('1', channel, word, word2)
  if there then tellFair(...) end
  return there and told or -1
end
