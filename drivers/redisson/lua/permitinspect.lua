-- Looks at the permits of the name KEYS[1], whose ends are KEYS[2], and changes nothing. Returns {the limit, how many are held, by how many holds,
-- one of these, the milliseconds that it has left}, or nil if the name is sealed.
local free, sealed = freeOf(KEYS[1])
if sealed then return false end
local now = clock()
local held = call('ZRANGE', KEYS[2], '(' .. string.format('%.0f', now), '+inf', 'BYSCORE', 'WITHSCORES')
local lasts, holds, one = {}, 0, nil
for i = 1, #held, 2 do
  local hold = #held[i] == 16 and string.sub(held[i], 1, 12) or held[i]
  if not lasts[hold] then holds = holds + 1 end
  lasts[hold] = held[i + 1] - now
  if not one or hold < one then one = hold end
end
return {free and free + call('ZCARD', KEYS[2]) or 0, #held / 2, holds, one or '', one and lasts[one] or 0}
