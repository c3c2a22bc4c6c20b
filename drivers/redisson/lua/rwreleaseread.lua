-- releaseRead ends a hold that reads, and tells who waits if it was the last that
-- lived. If it was the one that lasts longest, the lock lasts as long as the others
-- from then on, unless one is foreign. It returns how many waiters were told, or -1
-- if there is no such hold.
local function releaseRead(name, timeout, hold, prefix, channel, word, word2, ...)
  local mode = redis.pcall('HGET', name, 'mode')
  if type(mode) == 'table' and not overwritten(mode) then call('HGET', name, 'mode') end -- the error again
  if mode ~= 'read' or call('HEXISTS', name, hold) == 0 then
    call('DEL', timeout)
    return -1
  end
  local others = readersOf(name, prefix, hold, some)
  if not others.failed and not others.all and not others.foreign and
    (others.longest == -2 or call('PTTL', timeout) >= call('PTTL', name)) then
    others = readersOf(name, prefix, hold, all)
  end
  if others.failed then return others.failed end
  local there, told
  if others.longest == -2 then
    there, told = call('DEL', name, timeout) == 2, publish('0', channel, word, word2)
    tellFair(...)
  else
    there, told = call('DEL', timeout) == 1, 0
    others.dead[#others.dead + 1] = hold
    remove(name, others.dead)
    if others.all and not others.foreign then call('PEXPIRE', name, others.longest) end
    publish('9000000000000000000', channel, word, word2) -- to watchers: see readerEnded of package redistopic
  end
  return there and told or -1
end
