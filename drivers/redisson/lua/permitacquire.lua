-- acquire takes n permits of limit for a hold for ttl milliseconds. A limit of
-- 0 is what is kept; a limit below 0 is so too, and counts without the minus if
-- none is kept. It returns 1; -4000000000000 if the name is sealed;
-- -4000000000001 if the limit is another one, or too small; else the limit,
-- behind -1 - the milliseconds that are left of the hold that ends first, or 0
-- if that is more than 120 years.
local function acquire(name, ends, hold, n, limit, ttl)
  local now, from = clock()
  local free, held, over, sealed = count(name, ends, now)
  if sealed then return -4000000000000 end
  local kept = free ~= nil
  if not kept then free = math.abs(limit) - held end
  if n > free + held or limit > 0 and limit ~= free + held then return -4000000000001 end
  if n > free then
    local left = call('ZRANGE', ends, '(' .. string.format('%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2] - now
    return {left > 3784320000000 and 0 or -1 - left, free + held}
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
