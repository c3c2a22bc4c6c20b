-- releaseFair ends holds, of the lock or in the queue, in which they come from the
-- back, and tells the next if the lock is free. It returns for each how many wait,
-- if it had the lock, 0 if it was in the queue, and -1 if there was no such hold.
local function releaseFair(name, queue, times, channel, word, word2, count, ...)
  local line, holds, results, shifts = lineOf(queue, times), {...}, {}, {}
  local fields = redis.pcall('HLEN', name)
  if overwritten(fields) then
    fields = 0
  elseif type(fields) == 'table' then
    call('HLEN', name) -- the error again
  end
  for i, hold in ipairs(holds) do
    results[i] = -1
    if fields > 0 and call('HDEL', name, hold) == 1 then
      results[i], fields = 1, fields - 1
    end
  end
  if line.length > 0 then
    local left = fields > 0 and call('PTTL', name) or -2
    for i, hold in ipairs(holds) do
      local at = results[i] == -1 and line.length > 0 and call('LPOS', queue, hold, 'RANK', '-1')
      if at then
        leave(line, hold, at, clock() + math.max(left, 0), shifts)
        results[i] = 0
      end
    end
    move(line, shifts)
    local first = head(line)
    if first and left == -2 then
      local patient = tell(first, channel, word, word2, count)
      if patient == deaf and line.length > 1 then limit(line, first, clock() + deaf) end -- from now on, and not from when the next asks
    end
  end
  for i = 1, #holds do
    if results[i] == 1 then results[i] = line.length end
  end
  return #results == 1 and results[1] or results
end
