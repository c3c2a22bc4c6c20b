-- release gives the n permits of a hold back, and tells who waits on the
-- channel by the commands. Counted is '' where these do not count all who
-- listen. It returns how many subscribers were told, or -1 if the hold is over,
-- or has no longer all its permits; the rest of these are free then.
local function release(name, ends, hold, n, counted, ...)
  local now = clock()
  local known, free, held, over, sealed = pcall(count, name, ends, now)
  if not known and overwritten(free) then
    redis.pcall('ZREM', ends, unpack(membersOf(hold, n)))
    return -1
  elseif not known then
    count(name, ends, now) -- the error again
  end
  if sealed then return -1 end
  purge(ends, now, over)
  local gone, told = held > 0 and call('ZREM', ends, unpack(membersOf(hold, n))) or 0, 0
  if free and gone + over > 0 then
    free = call('INCRBY', name, gone + over)
    if free > 0 then told = tell(free, ...) end
    if held == gone then forget(name, told, counted) end
  end
  return gone == tonumber(n) and told or -1
end
return release(KEYS[1], KEYS[2], unpack(ARGV))
