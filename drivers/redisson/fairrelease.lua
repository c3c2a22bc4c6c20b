-- releaseFair ends holds, be they in the queue, in which they come from the back, or of the lock, and tells the next if the lock is
-- free. It returns for each how many wait, if it had the lock, 0 if it was in the queue, and -1 if there was no such hold; and then, if
-- the next is not known to have heard, the hold of that.
--
-- Where one hold ends, heir, unless that is '', is a waiter of the same client. If it is the first in the queue, it gets the lock, and is told
-- by the answer: how many wait behind it, its first token, and how many. The same release may be carried out again, at any later time: that
-- changes nothing of what heir has by then.
local function releaseFair(name, queue, times, token, channel, word, word2, count, heir, ttl, n, keep, holder, text, ...)
  local line, holds, results, shifts = lineOf(queue, times), {...}, {}, {}
  local ready, first = false, nil
  if heir ~= '' and call('HEXISTS', name, holds[1]) == 1 then
    ready, first = pcall(head, line, heir) -- a server without memory gives an heir no time
  end
  if ready and first == heir and call('HLEN', name) == 1 then
    local granted, fence, block = pcall(grant, line, heir, name, heir, ttl, token, n, keep, holder, text)
    if granted then
      call('HDEL', name, holds[1])
      return {line.length, fence, block}
    end
  end
  local fields = call('HLEN', name)
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
    first = head(line)
    if first and left == -2 then
      local patient, heard = tell(first, channel, word, word2, count)
      if patient == deaf and line.length > 1 then limit(line, first, clock() + deaf) end -- from now on, and not from when the next asks
      if not heard then results[#results + 1] = first end
    end
  end
  for i = 1, #holds do
    if results[i] == 1 then results[i] = line.length end
  end
  return #results == 1 and results[1] or results
end
