-- Returns {remaining milliseconds of the lock KEYS[1], its fields and values,
-- its mode as a read-write lock or ''}. For the mode 'read' the fields are the
-- holds that live, and the values the milliseconds that they have left; the
-- value of the key of the first of these, in the order of texts, follows.
-- ARGV[1] is the prefix of their keys.
local mode = call('HGET', KEYS[1], 'mode') or ''
if mode ~= 'read' then return {call('PTTL', KEYS[1]), call('HGETALL', KEYS[1]), mode} end
local readers = readersOf(KEYS[1], ARGV[1], nil, all)
if readers.failed then return readers.failed end
local first
for i = 1, #readers.living, 2 do
  if not first or readers.living[i] < first then first = readers.living[i] end
end
return {readers.longest, readers.living, mode, first and call('GET', ARGV[1] .. first .. ':rwlock_timeout:1')}
