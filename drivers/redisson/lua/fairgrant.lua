-- grant takes the lock for a hold that nobody keeps out, as acquire does; the hold leaves the line if it is first. It returns the first
-- token, and how many.
local function grant(line, first, name, hold, ttl, token, n, kind, text)
  local fence, block, value = take(token, n, kind, text)
  call('HSET', name, hold, value)
  call('PEXPIRE', name, ttl)
  if first == hold then
    local shifts = {}
    leave(line, hold, 0, clock() + ttl, shifts, true)
    move(line, shifts)
  end
  return fence, block
end
