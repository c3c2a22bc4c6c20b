local call = redis.call

-- most is how many members one command takes.
local most = 1000

-- publish publishes on a channel, and returns how many subscribers were told.
local function publish(message, channel, word, word2)
  local told = call(word, channel, message)
  if word2 ~= '' then told = told + call(word2, channel, message) end
  return told
end
