-- grant takes the lock for a hold that nobody keeps out, as acquire does; the hold leaves the line if it is first. It returns the first
-- token, and how many.
local function grant(line, first, name, hold, ttl, token, n, keep, holder, text)
  if token then note(holder, hold, text, ttl) end
  local fence, block = take(token, n, keep)
  call('HSET', name, hold, 1)
  call('PEXPIRE', name, ttl)
  if first == hold then
    local shifts = {}
    leave(line, hold, 0, clock() + ttl, shifts, true)
    move(line, shifts)
  end
  return fence, block
end
