-- tellFair tells the first who waits for a fair lock of the name, if there is one. Nobody is worse off than by a message that is lost if
-- the queue is on another node by now. Scripts that are given a queue have the functions of fair.lua.
local function tellFair(queue, times, ...)
  if queue then
    pcall(function(...)
      local first = head(lineOf(queue, times), clock())
      if first then tell(first, ...) end
    end, ...)
  end
end

-- releaseRead ends a hold that reads, and tells who waits if it was the last that lived. If it was the one that lasts longest, the lock lasts as
-- long as the others from then on. It returns how many were told, or -1 if there is no such hold.
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
