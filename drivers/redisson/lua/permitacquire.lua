-- acquire takes n permits of limit for a hold for ttl milliseconds. A limit of
-- 0 is what is kept; a limit below 0 is so too, and counts without the minus if
-- none is kept. It returns 1; {'sealed'}; {'limit'} if the limit is another one,
-- or too small; else {'held', the milliseconds that are left of the hold that
-- ends first, the limit}.
local function acquire(name, ends, hold, n, limit, ttl)
  local now, from = clock()
  local free, held, over, sealed = count(name, ends, now)
  if sealed then return {'sealed'} end
  local kept = free ~= nil
  if not kept then free = math.abs(limit) - held end
  if n > free + held or limit > 0 and limit ~= free + held then return {'limit'} end
  if n > free then
    local left = call('ZRANGE', ends, '(' .. string.format('%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2] - now
    return {'held', left, free + held}
  end
  local added = {}
  for i, member in ipairs(membersOf(hold, n)) do
    added[2 * i - 1], added[2 * i] = from + ttl, member
  end
  call('ZADD', ends, unpack(added))
  purge(ends, now, over)
  if kept then
    call('INCRBY', name, over - n)
  else
    call('SET', name, free - n, 'PX', ttl + spare)
  end
  keep(name, ends, ttl)
  return 1
end
return acquire(KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
