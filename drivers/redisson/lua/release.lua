local call = redis.call

-- release ends a hold of the lock name and sends the waiters on the channel a message by the commands word and, unless it is nil, word2.
-- It returns how many subscribers were told, or -1 if there is no such hold.
local function release(name, hold, channel, message, word, word2)
  local gone = redis.pcall('HDEL', name, hold)
  if type(gone) == 'table' then
    if string.find(gone.err, 'WRONGTYPE', 1, true) then return -1 end -- somebody has overwritten the lock
    call('HDEL', name, hold) -- the error again
  end
  if gone == 0 then return -1 end
  local told = call(word, channel, message)
  if word2 then told = told + call(word2, channel, message) end
  return told
end
