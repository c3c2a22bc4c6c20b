-- Gives each of the holds ARGV[3i-2] of permits of the name KEYS[1], of which it has ARGV[3i-1], ARGV[3i] milliseconds from now. KEYS[2] are the
-- ends. If ARGV[3i] is 0, nothing is changed. Returns a character for each: 1 done, 0 the hold is over, or has no longer all its permits.
local now, from = clock()
local known, err = pcall(count, KEYS[1], KEYS[2], now)
if not known and overwritten(err) then
  return string.rep('0', #ARGV / 3)
elseif not known then
  count(KEYS[1], KEYS[2], now) -- the error again
end
local longest, done = 0, {}
for i = 1, #ARGV, 3 do
  local members, ttl = membersOf(ARGV[i], ARGV[i + 1]), tonumber(ARGV[i + 2])
  local held, renewed = true, {}
  for j, last in ipairs(call('ZMSCORE', KEYS[2], unpack(members))) do
    held = held and last and tonumber(last) > now
    renewed[2 * j - 1], renewed[2 * j] = from + ttl, members[j]
  end
  if held and ttl > 0 then
    call('ZADD', KEYS[2], unpack(renewed))
    longest = math.max(longest, ttl)
  end
  done[#done + 1] = held and '1' or '0'
end
if longest > 0 then keep(KEYS[1], KEYS[2], longest) end
return table.concat(done)
