-- release gives the n permits of a hold back, and tells who waits on the channel by the commands. It returns how many subscribers were told, or -1
-- if the hold is over, or has no longer all its permits. What else is over stays for the next acquire.
local function release(name, ends, hold, n, ...)
  local free, sealed = freeOf(name)
  if sealed then return -1 end
  local now, members, live, told = clock(), membersOf(hold, n), {}, 0
  for i, last in ipairs(call('ZMSCORE', ends, unpack(members))) do
    if last and tonumber(last) > now then live[#live + 1] = members[i] end
  end
  if #live > 0 then
    call('ZREM', ends, unpack(live))
    free = free and call('INCRBY', name, #live)
    if free and free > 0 then told = tell(free, ...) end
  end
  return #live == tonumber(n) and told or -1
end
return release(KEYS[1], KEYS[2], unpack(ARGV))
