local call = redis.call

-- release ends a hold of the lock name and tells the waiters on the channel by the commands word and, unless it is nil, word2.
-- It returns how many subscribers were told, or -1 if there is no such hold.
local function release(name, hold, channel, word, word2)
  local gone = redis.pcall('HDEL', name, hold)
  if type(gone) == 'table' then
    if string.find(gone.err, 'WRONGTYPE', 1, true) then return -1 end -- somebody has overwritten the lock
    call('HDEL', name, hold) -- the error again
  end
  if gone == 0 then return -1 end
  local told = call(word, channel, '0')
  if word2 then told = told + call(word2, channel, '0') end
  return told
end
